-- One row: the settings of this database's scheduler, and the version that was installed last. The logs
-- of positions and ticks have their own rotation period: they are small and change often, while
-- event tables are large and hold events that consumers may still need. origin_id is the row of
-- pgque.origin when the schema was installed or adopted.
create table if not exists pgque.config (
    singleton       boolean primary key default true check (singleton),
    ticker_job_id   bigint,
    maint_job_id    bigint,
    scheduler       text,
    tick_period_ms  integer not null default 100 check (tick_period_ms between 1 and 1000),
    ticker_slot     interval not null default '1 second',
    installed_at    timestamptz not null default clock_timestamp(),
    schema_version  text not null,
    metadata_rotation_period  interval not null default '2 minutes'
                    check (metadata_rotation_period >= '0'),
    origin_id       uuid
);
