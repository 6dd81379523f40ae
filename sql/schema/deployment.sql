-- The deployment of Dagster to which a consumer belongs, from the first one that consumed for it.
-- Consumers of other programs have no row.
create table if not exists pgque.consumer_deployment (
    sub_id      integer primary key references pgque.subscription_base on delete cascade,
    deployment  text not null check (deployment <> ''),
    since       timestamptz not null default clock_timestamp()
);
