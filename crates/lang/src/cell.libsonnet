// The library of the job language: local cell = import 'cell.libsonnet';
// Every helper returns plain fields of a job, so that anything can be added with `+`.
{
  // Kinds of jobs. `fields` are those of a job; fields of its task may stand there directly.

  job(name, fields={}):: { name: name } + fields,

  // Runs for ever: production, fast, started again whenever it ends.
  service(name, fields={})::
    {
      name: name,
      priority: 'production',
      appclass: 'latency_sensitive',
      restart: { restart_on_success: true },
    } + fields,

  // Runs to its end; three failures in a row are forgiven, the fourth is for good.
  batch(name, fields={})::
    { name: name, priority: 'batch', restart: { max_failures: 3 } } + fields,

  // One task on every machine that it may run on, as machines come and go.
  daemon(name, fields={})::
    {
      name: name,
      kind: 'daemon',
      priority: 'production',
      restart: { restart_on_success: true },
    } + fields,

  // Resources held on machines for the tasks of other jobs.
  allocSet(name, fields={})::
    { name: name, kind: 'alloc_set', priority: 'production' } + fields,

  // A job, run at each moment of a schedule (five fields, in UTC). `options`: missed, overlap,
  // paused, keep_runs.
  cron(name, schedule, job, options={})::
    {
      name: name,
      schedule: schedule,
      job: { priority: 'batch', restart: { max_failures: 3 } } + job + { name: name },
    } + options,

  // The tasks of `job` inside the allocs of `set`.
  inside(set, job):: job { alloc_set: nameOf(set) },

  // `job` starts when `first`, a job or a list of jobs, has ended well.
  after(first, job)::
    job { after: if std.isArray(first) then [nameOf(one) for one in first] else nameOf(first) },

  // Jobs one after the other. A step that is a list starts all its jobs at once, and the step
  // behind it when all of them have ended well.
  workflow(steps)::
    local jobsOf(at) =
      local jobs = if std.isArray(steps[at]) then steps[at] else [steps[at]];
      assert std.length(jobs) > 0 :
        'step %d of the workflow has no jobs; allowed: a job, or a list of one or more' % at;
      jobs;
    local step(at) =
      if at == 0 then jobsOf(0) else [$.after(jobsOf(at - 1), job) for job in jobsOf(at)];
    std.flattenArrays([step(at) for at in std.range(0, std.length(steps) - 1)]),

  // `count` tasks that differ in what `fields(index)` says: limits, command, env.
  each(count, fields)::
    { count: count, overrides: { [std.toString(i)]: fields(i) for i in std.range(0, count - 1) } },

  // Amounts. Texts such as '500m', '2GiB' and '90s' mean the same.

  cores(n):: '%dm' % whole(n * 1000, 'cores(%s)' % n),
  kib(n):: whole(n * 1024, 'kib(%s)' % n),
  mib(n):: whole(n * 1024 * 1024, 'mib(%s)' % n),
  gib(n):: whole(n * 1024 * 1024 * 1024, 'gib(%s)' % n),
  tib(n):: whole(n * 1024 * 1024 * 1024 * 1024, 'tib(%s)' % n),
  milliseconds(n):: whole(n, 'milliseconds(%s)' % n),
  seconds(n):: whole(n * 1000, 'seconds(%s)' % n),
  minutes(n):: whole(n * 60 * 1000, 'minutes(%s)' % n),
  hours(n):: whole(n * 60 * 60 * 1000, 'hours(%s)' % n),
  days(n):: whole(n * 24 * 60 * 60 * 1000, 'days(%s)' % n),

  // Which machines. `where` must hold, `prefer` would be nice; the weight is from 1 to 100.

  where(attribute, operator, value=null)::
    local names = {
      '==': 'equal',
      '!=': 'not_equal',
      '<': 'less',
      '<=': 'less_or_equal',
      '>': 'greater',
      '>=': 'greater_or_equal',
      'in': 'in',
      'not in': 'not_in',
      matches: 'matches',
      'version >=': 'version_at_least',
      'version <': 'version_below',
    };
    local alone = ['exists', 'absent'];
    assert std.objectHas(names, operator) || std.member(alone, operator) :
      'operator %s is not known; allowed: %s' %
        [operator, std.join(', ', std.objectFields(names) + alone)];
    {
      attribute: attribute,
      operator: if std.member(alone, operator) then operator else { [names[operator]]: value },
    },

  prefer(weight, constraint):: constraint { strength: { soft: weight } },

  // At most `limit` tasks of the job in one 'machine', 'rack' or 'power' domain, or in the 'cell' at
  // once.
  spread(domain, limit=1):: { domain: domain, limit: limit },

  // How to tell that a task is well. `port` counts among the task's ports.

  http(path='/', port=0, fields={}):: { probe: { http: { port: port, path: path } } } + fields,
  tcp(port=0, fields={}):: { probe: { tcp: { port: port } } } + fields,
  check(command, fields={}):: { probe: { command: command } } + fields,

  // What `cell package push` printed.
  package(name, digest, bytes):: { name: name, digest: digest, bytes: bytes },

  local whole(number, words) =
    assert std.isNumber(number) && number == std.floor(number) && number >= 0 :
      '%s is no whole amount' % words;
    number,

  local nameOf(job) = if std.isString(job) then job else job.name,
}
