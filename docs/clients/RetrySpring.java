// How a program with Spring and HikariCP repeats transactions: see docs/retry.md.
//
// PGHERD_JDBC_URL is like jdbc:postgresql://h1,h2,h3/app?targetServerType=primary&hostRecheckSeconds=1
// &connectTimeout=2&user=app&password=... A service gets a RetrySpring where it would have got a
// TransactionTemplate. Work may call methods that are @Transactional: they take part.

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import com.zaxxer.hikari.SQLExceptionOverride;
import java.sql.SQLException;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Supplier;
import javax.sql.DataSource;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.support.JdbcTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

public class RetrySpring {
    // Nothing was committed, whenever one of these arrives.
    static final Set<String> NOTHING_COMMITTED = Set.of("40001", "40P01", "25006");
    static final int ATTEMPTS = 20;
    static final long PATIENCE_MS = 10_000;

    final JdbcTemplate jdbc;
    final TransactionTemplate transaction;

    RetrySpring(DataSource pool) {
        jdbc = new JdbcTemplate(pool);
        transaction = new TransactionTemplate(new JdbcTransactionManager(pool));
    }

    /** A connection to a member that takes no writes goes out of the pool; the next one goes elsewhere. */
    public static class LeavesReadOnly implements SQLExceptionOverride {
        public Override adjudicate(SQLException error) {
            return "25006".equals(error.getSQLState()) ? Override.MUST_EVICT : Override.CONTINUE_EVICT;
        }
    }

    static HikariDataSource pool(String url) {
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(url);
        config.setMaximumPoolSize(4);
        config.setConnectionTimeout(3_000);
        config.setExceptionOverrideClassName(LeavesReadOnly.class.getName());
        config.setInitializationFailTimeout(-1); // the first transaction waits for the herd, too
        return new HikariDataSource(config);
    }

    /**
     * Runs the work in a transaction that is committed once, and returns what it returned. The work
     * may be called several times, so it must do nothing but what a rollback undoes.
     */
    <T> T run(Supplier<T> work) throws InterruptedException {
        RuntimeException last = null;
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            Ending<T> ending = new Ending<>();
            try {
                transaction.executeWithoutResult(status -> {
                    ending.result = work.get();
                    ending.token = jdbc.queryForObject("SELECT pgherd.current_token()", String.class);
                });
                return ending.result;
            } catch (RuntimeException error) {
                last = error;
                if (!NOTHING_COMMITTED.contains(sqlState(error))) {
                    if (!lost(error)) {
                        throw error; // a mistake of the program, which would come again
                    }
                    if (ending.token != null && committed(ending.token)) {
                        return ending.result;
                    }
                }
            }
            pause(attempt);
        }
        throw new IllegalStateException(ATTEMPTS + " attempts have failed, the last: " + last, last);
    }

    /** What is known when COMMIT may have been sent; before that nothing can have been committed. */
    static class Ending<T> {
        String token;
        T result;
    }

    /** Tells the SQLSTATE inside an exception of Spring: "" if PostgreSQL's driver gave none, null if no SQL failed. */
    static String sqlState(Throwable error) {
        for (Throwable one = error; one != null; one = one.getCause()) {
            if (one instanceof SQLException cause) {
                return cause.getSQLState() == null ? "" : cause.getSQLState();
            }
        }
        return null;
    }

    /** Tells whether the server or the connection failed, and not the program. */
    static boolean lost(Throwable error) {
        String state = sqlState(error);
        return state != null && state.matches("|(08|53|57P|58).*");
    }

    /** Tells whether the transaction of this token is committed; any member may be asked. */
    boolean committed(String token) throws InterruptedException {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        for (int attempt = 0; System.currentTimeMillis() < end; attempt++) {
            try {
                String status =
                    jdbc.queryForObject("SELECT pgherd.transaction_status(?)", String.class, token);
                if (!status.equals("unknown")) { // still under way
                    return status.startsWith("committed");
                }
            } catch (RuntimeException error) { // no member can be reached for a moment
                if (!lost(error) && !"25006".equals(sqlState(error))) {
                    throw error;
                }
            }
            pause(attempt);
        }
        throw new IllegalStateException(
            "nobody knows what became of transaction " + token + ": look before you repeat");
    }

    /** Waits a little, by chance, and longer each time. */
    static void pause(int attempt) throws InterruptedException {
        double longest = Math.min(1000, 10 * Math.pow(2, Math.min(attempt, 10)));
        Thread.sleep((long) ThreadLocalRandom.current().nextDouble(longest));
    }

    /** Takes one from the first account, and gives it to the second. */
    Void transfer() {
        jdbc.update("UPDATE account SET balance = balance - 1 WHERE id = 1");
        jdbc.update("UPDATE account SET balance = balance + 1 WHERE id = 2");
        return null;
    }

    public static void main(String[] arguments) throws Exception {
        int transfers = Integer.parseInt(System.getenv().getOrDefault("PGHERD_TRANSFERS", "1"));
        try (HikariDataSource pool = pool(System.getenv("PGHERD_JDBC_URL"))) {
            RetrySpring herd = new RetrySpring(pool);
            for (int i = 0; i < transfers; i++) {
                herd.run(herd::transfer);
            }
        } catch (RuntimeException error) {
            System.err.println(sqlState(error) + ": " + error.getMessage());
            System.exit(1);
        }
    }
}
