"""US-2: several teams consume one queue, each at its own pace."""

from tests.acceptance.conftest import Hire
from tests.support.stories import Operator, Producer

FIVE = ["1", "2", "3", "4", "5"]


def test_three_teams_get_the_same_events_independently(
    operator: Operator, producer: Producer, hire: Hire
) -> None:
    # Given a queue that three teams subscribe to,
    operator.creates_queue("events")
    teams = [hire("events", name) for name in ("analytics", "notifier", "audit")]
    for team in teams:
        team.subscribes()

    # when five events are sent,
    producer.sends("events", *FIVE)
    operator.ticks("events")

    # then each team receives all five.
    batches = [team.receives() for team in teams]
    assert [[message.payload for message in batch] for batch in batches] == [FIVE] * 3

    # And when one team is done, the others' batches are as before,
    analytics, notifier, audit = teams
    analytics.acks(batches[0][0])
    assert analytics.receives() == []
    assert [notifier.receives(), audit.receives()] == batches[1:]

    # which the statistics show.
    pending = operator.asks(
        "select consumer_name, pending_events, batch_active, lag >= '0'"
        " from pgque.consumer_stats() where queue_name = 'events' order by 1"
    )
    assert pending == [
        ("analytics", 0, False, True),
        ("audit", 5, True, True),
        ("notifier", 5, True, True),
    ]


def test_a_team_that_joins_later_gets_what_is_sent_from_then_on(
    operator: Operator, producer: Producer, hire: Hire
) -> None:
    operator.creates_queue("events")
    first, second = hire("events", "first"), hire("events", "second")
    first.subscribes()
    producer.sends("events", "before")
    operator.ticks("events")

    second.subscribes()
    producer.sends("events", "after")
    operator.ticks("events")

    assert (first.works_off(), second.works_off()) == (["before", "after"], ["after"])
