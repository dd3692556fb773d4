// An alloc holds room on a machine. A server writes its log there, and a log saver that is placed
// in the same allocs reads it there; both share what the alloc has, its folder included.
//   cell run examples/alloc.jsonnet
local cell = import 'cell.libsonnet';

local room = cell.allocSet('frontend', {
  count: 2,
  cpu: '200m',
  ram: '512MiB',
  disk: '1GiB',
});

local server = cell.service('server', {
  count: 2,
  cpu: '100m',
  ram: '256MiB',
  disk: '512MiB',
  command: ['sh', '-c', 'while true; do date >> "$CELL_ALLOC_DIR/server.log"; sleep 1; done'],
});

local saver = cell.service('log-saver', {
  count: 2,
  cpu: '50m',
  ram: '64MiB',
  disk: '64MiB',
  command: ['sh', '-c', 'exec tail -F "$CELL_ALLOC_DIR/server.log"'],
});

[
  room,
  cell.inside(room, server),
  cell.inside(room, saver),
]
