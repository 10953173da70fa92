package simulate

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// World is a cluster in virtual time, with the outcome so far. It is not safe for concurrent use.
type World struct {
	options   Options
	c         *cluster.Cluster
	workloads workloads
	origin    manifest.Set // the set as it was at the beginning, for a twin
	nodes     nodes
	scheduler scheduler
	bounds    *bounds
	budgets   budgets
	claims    claims
	clock     clock
	report    report

	evictions   evictions
	health      health
	pods        pods
	controllers controllers
	gangs       bool // Jobs become gangs
	allowed     allowed
}
