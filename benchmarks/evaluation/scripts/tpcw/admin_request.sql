\set item random(1, :items)
SELECT item.*, author.* FROM item JOIN author ON a_id = i_a_id WHERE i_id = :item;
