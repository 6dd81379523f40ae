"""Registering consumers: where they start, what they keep, what their end takes away."""

from tests.support.queues.sql import Connection, refused

FIRST = "select queue_first_tick from pgque.queue"


def register(db: Connection, consumer: str | None = "c") -> int:
    return db.value("select pgque.register_consumer('q', %s)", consumer)


def register_at(db: Connection, tick_id: int, consumer: str = "c") -> int:
    return db.value("select pgque.register_consumer_at('q', %s, %s)", consumer, tick_id)


def test_a_new_consumer_gets_what_is_not_ticked_and_keeps_its_place(bare: Connection) -> None:
    bare.publish("before the tick")
    bare.send("after the tick")
    assert register(bare) == 1
    bare.tick()
    assert register(bare) == 0
    assert bare.drain() == ["after the tick"]
    bare.publish("old")
    bare.value("select pgque.unregister_consumer('q', 'c')")
    register(bare)
    bare.send("new")
    assert bare.received() == ["new"]


def test_a_consumer_can_start_at_an_earlier_tick_and_read_again(bare: Connection) -> None:
    start = bare.last_tick()
    bare.publish("a")
    for _ in range(2):
        register_at(bare, start)
        assert bare.drain() == ["a"]


def test_moving_a_consumer_takes_its_open_batch_back_unless_it_is_leased(q: Connection) -> None:
    batch = q.open_batch("a")
    register_at(q, q.last_tick() - 1)
    with refused("PQ003"):
        q.payloads(batch)
    q.value("select batch_id from pgque.claim_batch('q', 'c', 'holder')")
    with refused("PQ004", '"holder"'):
        register_at(q, q.last_tick())


def test_a_tick_that_is_not_there_or_rotated_away_is_refused(bare: Connection) -> None:
    start = bare.last_tick()
    for number in (0, 2, 4711):
        with refused("PQ005", f"tick {number}"):
            register_at(bare, number)
    bare.publish("gone")
    for _ in range(3):
        bare.rotate()
    first = bare.value(FIRST)
    with refused("PQ005", f"tick {start}", f"Ticks {first} to {bare.last_tick()} are retained"):
        register_at(bare, start)


def test_the_first_tick_whose_events_are_kept_gives_them_all(bare: Connection) -> None:
    bare.tick()
    bare.rotate()
    first = bare.value(FIRST)
    bare.publish("a")
    bare.rotate()
    rotated_on = bare.value(FIRST)
    register_at(bare, rotated_on)
    bare.send("b")
    assert (first < rotated_on, bare.received()) == (True, ["b"])


def test_rotation_and_compaction_await_a_registration(bare: Connection) -> None:
    bare.value("select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
    step1 = "select pgque.maint_rotate_tables_step1('q')"
    start = bare.last_tick()
    bare.publish("a")
    bare.bloat_ticks()
    registering = bare.another()
    with registering.transaction():
        register_at(registering, start)
        assert bare.value(step1) == 0
        assert bare.compact_ticks() == 0
    assert bare.next_batch() == 1
    assert bare.value(step1) == 1


def test_one_whose_queue_is_dropped_must_start_again(bare: Connection) -> None:
    with bare.transaction():
        bare.value("select pgque.drop_queue('q')")
        answer = bare.blocked(register_at, 1)
    with refused("40001"):
        answer.result()


def test_unregistering_takes_batch_retries_and_dead_letters(db: Connection) -> None:
    db.make_queue("q2")
    db.value("select pgque.dead_letter_batch(%s, array[1], 'bad')", db.open_batch("x", queue="q2"))
    db.make_queue(consumers=("c", "other"))
    ids = db.send("again", "never")
    db.tick()
    for consumer in ("c", "other"):
        batch = db.next_batch(consumer=consumer)
        db.value("select pgque.nack_batch(%s, %s)", batch, ids[:1])
        db.value("select pgque.dead_letter_batch(%s, %s, 'bad')", batch, ids[1:])
    db.value("select pgque.unregister_consumer('q', 'c')")
    owner = db.value("select sub_id from pgque.subscription where sub_queue = %s", db.queue_id())
    assert db.rows("select ev_owner from pgque.retry_queue") == [(owner,)]
    assert db.rows("select consumer_name from pgque.dlq_summary('q')") == [("other",)]
    assert db.rows("select consumer_name from pgque.dlq_summary('q2')") == [("c",)]


def test_a_consumer_has_a_name_of_any_length(db: Connection) -> None:
    names = ("x" * 1000, " ")
    db.make_queue(consumers=names)
    db.publish("a")
    assert [db.drain(consumer=name) for name in names] == [["a"]] * 2
    for name in ("", None):
        with refused("PQ005", "consumer name"):
            register(db, name)
        with refused("PQ005", "consumer name"):
            db.value("select pgque.register_consumer('q', %s, 'latest')", name)


def test_infos_count_what_waits_and_what_is_not_ticked(q: Connection) -> None:
    q.publish("a", "b")
    q.send("c", "d", "e")
    columns = "queue_name, consumer_name, pending_events"
    assert q.rows(f"select {columns} from pgque.get_consumer_info()") == [("q", "c", 2)]
    info = q.rows("select queue_name, ev_new, last_tick_id from pgque.get_queue_info('q')")
    assert info == [("q", 3, 2)]
