"""The rules between records: tables of what they say, and a query for each rule.

Ids are text: SQLite has no integers above 63 bits, and a key has its number with leading zeros.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

TABLES = {
    "ledgers": "id INTEGER, key, state, entries INTEGER, is_own, topic",
    "places": "ledger_id INTEGER, key, is_pointed, is_retired",
    "topics": "uid INTEGER, key",
    "lanes": "place, uid INTEGER, key, current INTEGER, next_version INTEGER",
    "rows": "place, number INTEGER, ledger_id INTEGER, key, state, base INTEGER, entries INTEGER",
    "removals": "place, number INTEGER, stop INTEGER",
    "names": "place, key",
    "of_topics": "uid INTEGER, key",
    "of_jobs": "job, key, what",
    "of_ledgers": "ledger_id INTEGER, key, what",
    "groups": "name",
    "of_groups": "name, key, what",
    "shares": "name, uid INTEGER, partition INTEGER, key",
    "events": "namespace, number INTEGER, key",
    "last_events": "namespace, number INTEGER",
    "counters": "name, next INTEGER",
    "leases": "name",
    "pages": "owner, id, key",
    "paged": "key, id",
}
"""*place*: a lane, as "uid/partition/lane" stands in its keys. *entries*: -1 while open.
*is_pointed*: the row names a pointer, so another row may name its ledger too.
*is_retired*: the ledger may be gone, since many are removed before the list is.
A counter that is not there begins at 1."""
INDEXES = (
    "ledgers(id)",
    "places(ledger_id)",
    "topics(uid)",
    "lanes(place)",
    "rows(place, number)",
    "removals(place)",
    "leases(name)",
    "groups(name)",
    "paged(key)",
)


class Rule(NamedTuple):
    """A query for records that break a rule: a key, and what *problem* shows."""

    severity: Literal["broken", "leftover"]
    problem: str
    query: str


RULES = (
    Rule(
        "broken",
        "the ledger {} has no record",
        "SELECT places.key, ledger_id FROM places LEFT JOIN ledgers ON id = ledger_id"
        " WHERE id IS NULL AND NOT is_retired",
    ),
    Rule(
        "broken",
        "the ledger {} belongs to {} too",
        "SELECT max(key), ledger_id, min(key) FROM places WHERE NOT is_pointed"
        " GROUP BY ledger_id HAVING count(*) > 1",
    ),
    Rule(
        "broken",
        "was written for the topic {}, but no lane, job, compacted set or tick names it",
        "SELECT ledgers.key, topic FROM ledgers LEFT JOIN places ON id = ledger_id"
        " WHERE topic != '' AND ledger_id IS NULL",
    ),
    Rule(
        "broken",
        "the counter of ledgers continues at {}, so its id will be issued again",
        "SELECT key, coalesce(next, 1) FROM ledgers LEFT JOIN counters ON name = 'ledgers'"
        " WHERE is_own AND id >= coalesce(next, 1)",
    ),
    Rule(
        "broken",
        "the counter of topics continues at {}, so its uid will be issued again",
        "SELECT key, coalesce(next, 1) FROM topics LEFT JOIN counters ON name = 'topics'"
        " WHERE uid >= coalesce(next, 1)",
    ),
    Rule(
        "broken",
        "has the uid {} of {} too",
        "SELECT max(key), uid, min(key) FROM topics GROUP BY uid HAVING count(*) > 1",
    ),
    Rule(
        "broken",
        "is a lane of the topic with uid {}, which does not exist",
        "SELECT lanes.key, lanes.uid FROM lanes LEFT JOIN topics USING (uid)"
        " WHERE topics.uid IS NULL",
    ),
    Rule(
        "broken",
        "is a ledger of a lane that does not exist",
        "SELECT rows.key FROM rows LEFT JOIN lanes USING (place) WHERE lanes.place IS NULL",
    ),
    Rule(
        "broken",
        "names a lane that does not exist",
        "SELECT names.key FROM names LEFT JOIN lanes USING (place) WHERE lanes.place IS NULL",
    ),
    Rule(
        "broken",
        "is closed with {} entries, but the record of its ledger {} says: {}",
        "SELECT rows.key, rows.entries, ledger_id,"
        " CASE ledgers.state WHEN 'closed' THEN ledgers.entries || ' entries'"
        " ELSE ledgers.state END"
        " FROM rows JOIN ledgers ON id = ledger_id"
        " WHERE rows.state = 'closed'"
        " AND (ledgers.state != 'closed' OR rows.entries != ledgers.entries)",
    ),
    Rule(
        "broken",
        "is {}, but its lane is at ledger number {}",
        "SELECT rows.key, state, current FROM rows JOIN lanes USING (place)"
        " WHERE number < current AND state != 'closed'"
        " OR number = current AND state = 'prepared'"
        " OR number = current + 1 AND state != 'prepared'"
        " OR number > current + 1",
    ),
    Rule(
        "broken",
        "ends at version {}, but its lane continues at version {}",
        "SELECT rows.key, base + max(entries, 0), next_version FROM rows JOIN lanes USING (place)"
        " WHERE state != 'prepared' AND base + max(entries, 0) > next_version",
    ),
    Rule(
        "broken",
        "begins at version {}, but the ledger before it ends at version {}",
        "SELECT key, base, ended FROM (SELECT key, base, state,"
        " lag(base + max(entries, 0)) OVER (PARTITION BY place ORDER BY number) AS ended"
        " FROM rows WHERE state != 'prepared') WHERE base < ended",
    ),
    Rule(
        "broken",
        "the ledgers from number {} to {} of the lane are missing before it",
        "SELECT key, before + 1, number - 1 FROM (SELECT place, key, number,"
        " lag(number) OVER (PARTITION BY place ORDER BY number) AS before FROM rows) AS gaps"
        " WHERE number > before + 1 AND number - before - 1 > (SELECT"
        " coalesce(sum(min(stop, gaps.number) - max(removals.number, before + 1)), 0)"
        " FROM removals WHERE removals.place = gaps.place AND stop > before + 1"
        " AND removals.number < gaps.number)",
    ),
    Rule(
        "broken",
        "the last event of the namespace has number {}",
        "SELECT key, coalesce(last_events.number, 0) FROM events"
        " LEFT JOIN last_events USING (namespace)"
        " WHERE events.number > coalesce(last_events.number, 0)",
    ),
    Rule(
        "broken",
        "has partition {} of the topic with uid {}, and so has {}",
        "SELECT max(key), partition, uid, min(key) FROM shares"
        " GROUP BY name, uid, partition HAVING count(*) > 1",
    ),
    Rule(
        "broken",
        "{} of the group {}, which does not exist",
        "SELECT key, what, of_groups.name FROM of_groups LEFT JOIN groups USING (name)"
        " WHERE groups.name IS NULL",
    ),
    Rule(
        "leftover",
        "belongs to the topic with uid {}, which is gone",
        "SELECT of_topics.key, of_topics.uid FROM of_topics LEFT JOIN topics USING (uid)"
        " WHERE topics.uid IS NULL",
    ),
    Rule(
        "leftover",
        "{} of a job that does not run",
        "SELECT key, what FROM of_jobs LEFT JOIN leases ON name = job WHERE name IS NULL",
    ),
    Rule(
        "leftover",
        "a page of {}, which does not name it",
        "SELECT pages.key, owner FROM pages LEFT JOIN paged"
        " ON paged.key = owner AND paged.id = pages.id"
        " WHERE paged.key IS NULL AND pages.key LIKE '%/000000'",
    ),
    Rule(
        "leftover",
        "{} of a ledger that is gone",
        "SELECT of_ledgers.key, what FROM of_ledgers LEFT JOIN ledgers ON id = ledger_id"
        " WHERE id IS NULL",
    ),
)
