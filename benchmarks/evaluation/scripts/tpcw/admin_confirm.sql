-- A new price and picture, and as related items the five that buyers of this one, among the newest
-- 10,000 orders, bought most.
\set item random(1, :items)
\set cost random(5, 95)
BEGIN;
UPDATE item SET i_cost = :cost, i_image = 'image_' || :item::text || '.gif',
    i_thumbnail = 'thumb_' || :item::text || '.gif', i_pub_date = current_date WHERE i_id = :item;
WITH newest AS (SELECT o_id, o_c_id FROM orders ORDER BY o_date DESC LIMIT 10000),
     best AS (SELECT ol_i_id FROM newest JOIN order_line ON ol_o_id = o_id
              WHERE ol_i_id <> :item AND o_c_id IN (
                  SELECT o_c_id FROM newest JOIN order_line ON ol_o_id = o_id WHERE ol_i_id = :item)
              GROUP BY ol_i_id ORDER BY sum(ol_qty) DESC LIMIT 5),
     related AS (SELECT array_agg(ol_i_id) AS ids FROM best)
    UPDATE item SET i_related1 = coalesce(ids[1], i_related1), i_related2 = coalesce(ids[2], i_related2),
        i_related3 = coalesce(ids[3], i_related3), i_related4 = coalesce(ids[4], i_related4),
        i_related5 = coalesce(ids[5], i_related5) FROM related WHERE i_id = :item;
COMMIT;
