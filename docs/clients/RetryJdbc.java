// How a program with pgjdbc repeats transactions: see docs/retry.md.
//
// PGHERD_JDBC_URL is like jdbc:postgresql://h1,h2,h3/app?targetServerType=primary&hostRecheckSeconds=1
// &connectTimeout=2&user=app&password=... Run it by: java -cp postgresql.jar RetryJdbc.java

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;

public class RetryJdbc {
    // Nothing was committed, whenever one of these arrives.
    static final Set<String> NOTHING_COMMITTED = Set.of("40001", "40P01", "25006");
    static final int ATTEMPTS = 20;
    static final long PATIENCE_MS = 10_000;

    /** May be called several times, so it must do nothing but what a rollback undoes. */
    interface Work<T> {
        T in(Connection connection) throws SQLException;
    }

    /** Runs the work in a transaction that is committed once, and returns what it returned. */
    static <T> T run(String url, Work<T> work) throws SQLException, InterruptedException {
        SQLException last = null;
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            String token = null; // until COMMIT may have been sent nothing can have been committed
            T result = null;
            try (Connection connection = DriverManager.getConnection(url)) {
                connection.setAutoCommit(false);
                result = work.in(connection);
                token = ask(connection, "SELECT pgherd.current_token()", null);
                connection.commit();
                return result;
            } catch (SQLException error) {
                last = error;
                if (!NOTHING_COMMITTED.contains(String.valueOf(error.getSQLState()))) {
                    if (!lost(error)) {
                        throw error; // a mistake of the program, which would come again
                    }
                    if (token != null && committed(url, token)) {
                        return result;
                    }
                }
            }
            pause(attempt);
        }
        throw new SQLException(ATTEMPTS + " attempts have failed, the last: " + last, last);
    }

    /** Tells whether the server or the connection failed, and not the program. */
    static boolean lost(SQLException error) {
        String state = error.getSQLState();
        return state == null || state.matches("(08|53|57P|58).*");
    }

    /** Tells whether the transaction of this token is committed; any member may be asked. */
    static boolean committed(String url, String token) throws SQLException, InterruptedException {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        for (int attempt = 0; System.currentTimeMillis() < end; attempt++) {
            try (Connection connection = DriverManager.getConnection(url)) {
                String status = ask(connection, "SELECT pgherd.transaction_status(?)", token);
                if (!status.equals("unknown")) { // still under way
                    return status.startsWith("committed");
                }
            } catch (SQLException error) { // no member can be reached for a moment
                if (!lost(error) && !"25006".equals(error.getSQLState())) {
                    throw error;
                }
            }
            pause(attempt);
        }
        throw new SQLException(
            "nobody knows what became of transaction " + token + ": look before you repeat");
    }

    static String ask(Connection connection, String query, String parameter) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(query)) {
            if (parameter != null) {
                statement.setString(1, parameter);
            }
            try (ResultSet row = statement.executeQuery()) {
                row.next();
                return row.getString(1);
            }
        }
    }

    /** Waits a little, by chance, and longer each time. */
    static void pause(int attempt) throws InterruptedException {
        double longest = Math.min(1000, 10 * Math.pow(2, Math.min(attempt, 10)));
        Thread.sleep((long) ThreadLocalRandom.current().nextDouble(longest));
    }

    /** Takes one from the first account, and gives it to the second. */
    static Void transfer(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.executeUpdate("UPDATE account SET balance = balance - 1 WHERE id = 1");
            statement.executeUpdate("UPDATE account SET balance = balance + 1 WHERE id = 2");
        }
        return null;
    }

    public static void main(String[] arguments) throws Exception {
        String url = System.getenv("PGHERD_JDBC_URL");
        int transfers = Integer.parseInt(System.getenv().getOrDefault("PGHERD_TRANSFERS", "1"));
        try {
            for (int i = 0; i < transfers; i++) {
                run(url, RetryJdbc::transfer);
            }
        } catch (SQLException error) {
            System.err.println(error.getSQLState() + ": " + error.getMessage());
            System.exit(1);
        }
    }
}
