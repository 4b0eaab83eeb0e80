// How a program with node-postgres repeats transactions: see docs/retry.md.
//
// node-postgres knows one host only, so `connect` looks for a member that takes writes. PGHERD_DSN
// holds the line that `pgherd local status --show-passwords` prints for applications.
"use strict";

const { Client } = require("pg");

// Nothing was committed, whenever one of these arrives.
const NOTHING_COMMITTED = new Set(["40001", "40P01", "25006"]);
const ATTEMPTS = 20;
const PATIENCE_MS = 10_000;
const CONNECT_MS = 2_000;

/** Connects to the first member of the line that takes writes. */
async function connect(dsn) {
  const [, user, hosts, database] = /^postgresql:\/\/([^@]*)@([^/]*)\/([^?]*)/.exec(dsn);
  let problem;
  for (const host of hosts.split(",")) {
    const client = new Client({
      connectionString: `postgresql://${user}@${host}/${database}`,
      connectionTimeoutMillis: CONNECT_MS,
    });
    client.on("error", () => {}); // a connection that is lost is noticed by who uses it
    try {
      await client.connect();
      const answer = await client.query("SHOW transaction_read_only");
      if (answer.rows[0].transaction_read_only === "off") return client;
      problem = Object.assign(new Error("no member takes writes"), { code: "25006" });
    } catch (error) {
      problem = error;
    }
    await close(client);
  }
  throw problem;
}

async function close(client) {
  await client.end().catch(() => {});
}

/** Tells whether the server or the connection failed, and not the program. */
function lost(error) {
  const saidByServer = error.severity !== undefined;
  return !saidByServer || /^(08|53|57P|58)/.test(error.code);
}

/** Waits a little, by chance, and longer each time. */
function pause(attempt) {
  const longest = Math.min(1000, 10 * 2 ** Math.min(attempt, 10));
  return new Promise((resolve) => setTimeout(resolve, Math.random() * longest));
}

/**
 * Runs the work in a transaction that is committed once, and returns what it returned.
 *
 * The work may be called several times, so it must do nothing but what a rollback undoes.
 */
async function run(dsn, work) {
  let last;
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    let client, result;
    let token = null; // until COMMIT may have been sent nothing can have been committed
    try {
      client = await connect(dsn);
      await client.query("BEGIN");
      result = await work(client);
      token = (await client.query("SELECT pgherd.current_token() AS token")).rows[0].token;
      await client.query("COMMIT");
      return result;
    } catch (error) {
      last = error;
      if (!NOTHING_COMMITTED.has(error.code)) {
        if (!lost(error)) throw error; // a mistake of the program, which would come again
        if (token !== null && (await committed(dsn, token))) return result;
      }
    } finally {
      if (client) await close(client);
    }
    await pause(attempt);
  }
  throw new Error(`${ATTEMPTS} attempts have failed, the last: ${last.message}`);
}

/** Tells whether the transaction of this token is committed; any member may be asked. */
async function committed(dsn, token) {
  const end = Date.now() + PATIENCE_MS;
  for (let attempt = 0; Date.now() < end; attempt++) {
    let client;
    try {
      client = await connect(dsn);
      const query = "SELECT pgherd.transaction_status($1) AS status";
      const { status } = (await client.query(query, [token])).rows[0];
      if (status !== "unknown") return status.startsWith("committed"); // else still under way
    } catch (error) {
      if (!lost(error) && error.code !== "25006") throw error;
    } finally {
      if (client) await close(client);
    }
    await pause(attempt);
  }
  throw new Error(`nobody knows what became of transaction ${token}: look before you repeat`);
}

/** Takes one from the first account, and gives it to the second. */
async function transfer(client) {
  await client.query("UPDATE account SET balance = balance - 1 WHERE id = 1");
  await client.query("UPDATE account SET balance = balance + 1 WHERE id = 2");
}

async function main() {
  for (let i = 0; i < Number(process.env.PGHERD_TRANSFERS ?? 1); i++) {
    await run(process.env.PGHERD_DSN, transfer);
  }
}

main().catch((error) => {
  console.error(`${error.code ?? ""} ${error.message}`);
  process.exitCode = 1;
});
