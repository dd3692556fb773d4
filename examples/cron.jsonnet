// A job that runs every quarter of an hour, in UTC; while a run goes on no other begins.
//   cell run examples/cron.jsonnet
local cell = import 'cell.libsonnet';

cell.cron('sweep', '*/15 * * * *', {
  cpu: '100m',
  ram: '64MiB',
  max_run: '5m',
  command: ['sh', '-c', 'echo sweeping; date'],
}, { overlap: 'skip', keep_runs: 5 })
