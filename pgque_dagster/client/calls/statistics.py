"""Statistics, health and metrics of queues and consumers."""

from .call import Call


def unfinished_events(queue: str, consumer: str | None) -> Call[dict[str, int]]:
    """At most how many events each consumer has before it; 1 for a batch that may be empty.

    Args:
        queue: the queue's name.
        consumer: this one with its subconsumers and slots; None for all.
    """
    return Call(
        "select i.consumer_name, greatest(coalesce(i.pending_events, 0),"
        " (i.current_batch is not null)::int) + coalesce(u.events, 0) + coalesce(h.held_events, 0)"
        " from (values (%s::text, %s::text)) w (queue, consumer)"
        " cross join lateral pgque.get_consumer_info(w.queue) i"
        " left join lateral pgque.unticked_events(w.queue) u using (queue_name)"
        " left join pgque.partition_slot_status h on h.queue_name = w.queue"
        " and i.consumer_name = format('%%s#%%s/%%s', h.consumer, h.slot, h.n)"
        " where w.consumer is null or w.consumer in (i.consumer_name, h.consumer)"
        " or exists (select from pgque.queue q"
        " join pgque.subscription s on s.sub_queue = q.queue_id"
        " join pgque.consumer c on c.co_id = s.sub_consumer"
        " join pgque.subscription m on m.sub_id = s.sub_main"
        " join pgque.consumer mc on mc.co_id = m.sub_consumer"
        " where q.queue_name = w.queue and c.co_name = i.consumer_name"
        " and mc.co_name = w.consumer)",
        (queue, consumer),
        lambda rows: dict(rows),
    )
