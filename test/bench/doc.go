// Package bench measures what a decision costs, kube-scheduler's and Berth's side by side in one
// run, from a *v1.Pod to its node, with the bookkeeping that lets the next decision see it and
// without any API.
//
// The modes and the goals are those of the table that `make bench` prints ([Modes], [Report]).
// kube-scheduler runs through SchedulePod, as its scheduling cycle does, once with its default
// sampling and once looking at all nodes, as Berth always does. Ratios compare what was measured on
// this machine in this run; a benchmark has no time limit that could fail.
package bench
