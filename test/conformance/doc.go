// Package conformance holds Berth against the Kubernetes scheduler itself: random clusters and pods
// go through the plugins of k8s.io/kubernetes v1.37 and through Berth's, and every verdict, reason,
// score, message, choice and victim must be the same.
//
// A cluster is made from one number, its seed ([Generate]). The upstream side ([newUpstream]) is
// the scheduler's own cache, framework and plugins over informers that are filled by hand, without
// goroutines; the Berth side reads the same objects into a cluster.Cluster. What differs is
// reported as [Difference]s, for which the cluster is made as small as possible first.
//
// Run it with
//
//	go test ./conformance -clusters=2000 -seed=1 -plugins=TaintToleration,NodeAffinity
//
// Gangs are decided by the whole scheduler on either side, with the feature gates on: -gangs=1000.
package conformance
