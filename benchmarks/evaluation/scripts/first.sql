-- Before a client's first interaction: a session's first write also connects it with its sidecar,
-- which belongs to the warm-up.
\if :cold = 1
INSERT INTO shopping_cart VALUES (:first_cart + :client_id, now())
    ON CONFLICT (sc_id) DO UPDATE SET sc_time = now();
\set cold 0
\endif
