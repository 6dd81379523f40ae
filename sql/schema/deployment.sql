-- The assets of Dagster to which consumers belong: a deployment, a code location, and the keys of the
-- assets that one step computes; what is null is not known. Since gone_at, the location has no such asset.
-- Consumers of other programs have no row.
create table if not exists pgque.consumer_deployment (
    sub_id      integer primary key references pgque.subscription_base on delete cascade,
    deployment  text check (deployment <> ''),
    since       timestamptz not null default clock_timestamp(),
    location    text,
    assets      text[],
    gone_at     timestamptz
);
alter table pgque.consumer_deployment  -- version 0.3 has the deployment alone
    alter column deployment drop not null,
    add column if not exists location text,
    add column if not exists assets text[],
    add column if not exists gone_at timestamptz;

-- When a sensor of a code location was seen last. The deployment is empty on the embedded server.
create table if not exists pgque.code_location (
    deployment  text not null,
    location    text not null,
    seen_at     timestamptz not null,
    primary key (deployment, location)
);
