CREATE TABLE public.pgque_sink_ledger (
    sink text NOT NULL,
    batch text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL,
    incarnation uuid,
    batch_id bigint,
    prev_tick_id bigint,
    tick_id bigint,
    fingerprint text,
    failed text
);
CREATE TABLE public.revenue (
    number bigint,
    writer text,
    shard text
);
INSERT INTO public.pgque_sink_ledger VALUES ('public.revenue as revenue', 'shard eu of orders/revenue', '2026-11-29 16:41:04.654164+00', '533f48ef-2422-0e0b-53da-55ea0a19ed28', 1, NULL, NULL, '1162899481538400575', '[[[2], ["recorded"], null]]');
INSERT INTO public.pgque_sink_ledger VALUES ('public.revenue as revenue', 'shard us of orders/revenue', '2026-11-29 16:41:04.654164+00', '7314e7f9-8589-43b5-f3e2-bd53ea4b0d10', 1, NULL, NULL, '1162899481538400575', '[[[2], ["recorded"], null]]');
INSERT INTO public.revenue VALUES (1, 'recorded', 'eu');
INSERT INTO public.revenue VALUES (1, 'recorded', 'us');
ALTER TABLE ONLY public.pgque_sink_ledger
    ADD CONSTRAINT pgque_sink_ledger_pkey PRIMARY KEY (sink, batch);
