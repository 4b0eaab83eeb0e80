-- The two TPC-C transactions that are programs rather than statements.

-- New-Order. random() is welcome here: what replicates is the rows, not the call.
CREATE FUNCTION tpcc.new_order(home int, supply int, dist int, cust int, lines int) RETURNS int
LANGUAGE plpgsql SET search_path = tpcc, pg_temp AS $$
DECLARE
    number int;
    wanted int[];
BEGIN
    SELECT array_agg(DISTINCT 1 + floor(random() * (SELECT max(i_id) FROM item))::int)
      INTO wanted FROM generate_series(1, lines);

    UPDATE district SET d_next_o_id = d_next_o_id + 1
     WHERE d_w_id = home AND d_id = dist
    RETURNING d_next_o_id - 1 INTO number;

    INSERT INTO orders VALUES (home, dist, number, cust, now(), NULL, cardinality(wanted));
    INSERT INTO new_order VALUES (home, dist, number);

    UPDATE stock
       SET s_quantity = s_quantity - 5 + CASE WHEN s_quantity < 15 THEN 91 ELSE 0 END,
           s_ytd = s_ytd + 5,
           s_order_cnt = s_order_cnt + 1
     WHERE s_w_id = supply AND s_i_id = ANY (wanted);

    INSERT INTO order_line
    SELECT home, dist, number, line, i_id, supply, NULL, 5, 5 * i_price
      FROM unnest(wanted) WITH ORDINALITY AS chosen (i_id, line) JOIN item USING (i_id);
    RETURN number;
END $$;

-- Delivery: the oldest undelivered order of each district of one warehouse.
CREATE FUNCTION tpcc.delivery(home int, carrier int) RETURNS int
LANGUAGE plpgsql SET search_path = tpcc, pg_temp AS $$
DECLARE
    oldest    int;
    customer_ int;
    total     numeric;
    delivered int := 0;
BEGIN
    FOR dist IN 1..10 LOOP
        DELETE FROM new_order
         WHERE no_w_id = home AND no_d_id = dist
           AND no_o_id = (SELECT min(no_o_id) FROM new_order
                           WHERE no_w_id = home AND no_d_id = dist)
        RETURNING no_o_id INTO oldest;
        -- Nothing to deliver, or another delivery took it while we waited for its lock.
        CONTINUE WHEN NOT FOUND;

        UPDATE orders SET o_carrier_id = carrier
         WHERE o_w_id = home AND o_d_id = dist AND o_id = oldest
        RETURNING o_c_id INTO customer_;

        WITH line AS (
            UPDATE order_line SET ol_delivery_d = now()
             WHERE ol_w_id = home AND ol_d_id = dist AND ol_o_id = oldest
            RETURNING ol_amount
        ) SELECT sum(ol_amount) INTO total FROM line;

        UPDATE customer
           SET c_balance = c_balance + total, c_delivery_cnt = c_delivery_cnt + 1
         WHERE c_w_id = home AND c_d_id = dist AND c_id = customer_;
        delivered := delivered + 1;
    END LOOP;
    RETURN delivered;
END $$;
