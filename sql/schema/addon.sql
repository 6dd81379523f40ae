-- The add-ons that are installed: schemas with their own API on top of this one. The file of an
-- add-on registers it here. Its schema has its name.
create table if not exists pgque.addon (
    addon_name     text not null,
    addon_version  text not null,
    installed_at   timestamptz not null default clock_timestamp(),
    primary key (addon_name)
);
