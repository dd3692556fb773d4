// Four tasks that each do a part of the work and end. A task that fails is tried three times.
//   cell run examples/batch.jsonnet
local cell = import 'cell.libsonnet';

cell.batch('count', {
  cpu: '500m',
  ram: '64MiB',
  max_run: '10m',
  command: ['sh', '-c', 'echo part $PART of 4; sleep 1'],
} + cell.each(4, function(part) { env: { PART: '%d' % part } }))
