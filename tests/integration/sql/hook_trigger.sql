-- A deferred trigger of the user's, which only a superuser may give him.
CREATE FUNCTION refuse_negative() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.id < 0 THEN RAISE 'negative'; END IF;
    IF NEW.v = 'constraints' THEN SET CONSTRAINTS ALL IMMEDIATE; END IF;
    IF NEW.v = 'write' THEN INSERT INTO u VALUES (NEW.id); END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER zz AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION refuse_negative();
