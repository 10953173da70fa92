// Package lifecycle holds what becomes of nodes and pods under Berth's node health and taint
// eviction against what becomes of them under upstream's controllers, in random lives of a cluster:
// nodes fall silent and come back, alone, by zone and all together, report that they are not ready
// or under pressure, are cordoned, tainted, deleted and made anew, while pods come and go.
//
// A life is played twice from the same script, each time in virtual time and on an API server in
// memory: upstream's controllers run as they are, and so do Berth's. What is compared is what an
// observer of the API sees: taints, conditions, pods that are marked and pods that are deleted, and
// when.
package lifecycle
