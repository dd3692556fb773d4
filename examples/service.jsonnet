// A web server in three copies, each on a machine of its own, with a health check.
//   cell validate examples/service.jsonnet && cell run examples/service.jsonnet
local cell = import 'cell.libsonnet';

cell.service('web', {
  count: 3,
  cpu: '100m',
  ram: '128MiB',
  // One port, chosen by the cell: the program finds it in CELL_PORT0.
  ports: 1,
  command: ['sh', '-c', 'exec python3 -m http.server --bind 0.0.0.0 "$CELL_PORT0"'],
  health: cell.http('/', 0, { interval: '5s', start_period: '20s' }),
  labels: { app: 'web' },
  // While it is updated or machines are drained, two of the three stay up.
  max_down: 1,
  notice: '5s',
})
