// Jobs one after the other: each starts when the one before it has ended well. The last step is a
// list, whose jobs start together.
//   cell run examples/workflow.jsonnet
local cell = import 'cell.libsonnet';

local step(name, words) = cell.batch(name, {
  cpu: '100m',
  ram: '64MiB',
  command: ['sh', '-c', 'echo %s' % words],
});

cell.workflow([
  step('fetch', 'fetching'),
  step('sort', 'sorting'),
  [
    step('report', 'reporting'),
    step('archive', 'archiving'),
  ],
])
