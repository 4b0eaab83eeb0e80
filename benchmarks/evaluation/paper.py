"""The measurements that Postgres-R(SI) prints, section by section.

Our copy of the paper has its text and no plots. So nothing here is read off a plot: each line is a
number or an order that the text states. What figures 5, 6 and 7 show beyond that is not known.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of the paper's text."""

    figure: str
    """Of ours: see ``plan.FIGURES``."""
    name: str
    """By which ``findings`` knows it."""
    section: str
    words: str


CROSSOVER_TPS = 40

CLAIMS = (
    Claim("tpcw", "plain-slowest", "6.1, figures 5 and 6",
          "one server's response time is much worse than 5 or 10 replicas', and its maximum "
          "throughput much lower"),
    Claim("tpcw", "ten-beats-five", "6.1, figures 5 and 6",
          "10 replicas have smaller response times than 5, except updates at 20 tps"),
    Claim("tpcw", "aborts", "6.1", "abort rates are always well below 1 %"),
    Claim("overhead", "overhead", "6.2",
          "5 replicas need 5.5 ms more than one server for a transaction of 10 updates"),
    Claim("updates", "five-clients", "6.3, figure 7",
          "5 clients: one server is always considerably faster"),
    Claim("updates", "twenty-clients", "6.3, figure 7",
          "20 clients: one server is faster below 40 tps; above, its response time grows and "
          "that of 5 replicas remains low"),
    Claim("updates", "herd-aborts", "6.3", "5 replicas abort 1 to 1.5 %"),
    Claim("updates", "plain-aborts", "6.3",
          "one server aborts 0.2 % at 20 tps and nearly 7 % at 120 tps"),
)  # fmt: skip
