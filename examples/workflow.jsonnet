// Jobs one after the other: each starts when the step before it has ended well. A step that is a
// list starts all its jobs together; the step behind it waits for every one of them.
//   cell run examples/workflow.jsonnet
local cell = import 'cell.libsonnet';

local step(name, words) = cell.batch(name, {
  cpu: '100m',
  ram: '64MiB',
  command: ['sh', '-c', 'echo %s' % words],
});

cell.workflow([
  step('fetch', 'fetching'),
  [
    step('sort', 'sorting'),
    step('tally', 'tallying'),
  ],
  step('report', 'reporting'),
])
