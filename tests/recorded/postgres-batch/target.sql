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
    writer text
);
INSERT INTO public.pgque_sink_ledger VALUES ('public.revenue', 'orders/revenue/1@2026-01-01T00:30:00+00:00', '2026-11-29 16:40:56.977909+00', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.revenue VALUES (1, 'recorded');
INSERT INTO public.revenue VALUES (2, 'recorded');
ALTER TABLE ONLY public.pgque_sink_ledger
    ADD CONSTRAINT pgque_sink_ledger_pkey PRIMARY KEY (sink, batch);
