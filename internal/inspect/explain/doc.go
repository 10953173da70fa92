// Package explain says why a pod is on its node, why it is pending, or why it has to leave; and
// what the smallest change is that would help.
//
// It asks the engine, not a model of it: the plugins' verdicts and scores are those of package
// decide, preemption is tried as the scheduler tries it, and deadlines are those of package
// eviction. A change is suggested only after the engine, with the change made, has found a node for
// the pod. So an explanation cannot diverge from what the scheduler does.
//
// The input is a world of package simulate, read from a live cluster, a recording or manifests. The
// output is an [Explanation]: plain data for people (text), for programs (JSON, YAML) and for the
// dashboard. The world is left as it was.
package explain
