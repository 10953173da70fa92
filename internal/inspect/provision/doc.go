// Package provision answers which nodes to buy: given a cluster with pods that have no room and a
// catalog of nodes with prices, it finds cheap nodes on which all of them run, says what these cost
// and how far that is, at most, from the least possible, and which pods no node of the catalog
// helps.
//
// It goes three ways around. What pods and nodes are to numbers (demand.go) is packed by package
// packing, which knows sizes, prices and who may be with whom. Which of several pods that are alike
// to the packing go to which node, and in which order, is chosen with the counts of their spread
// constraints (zones.go, assign.go, spreads.go). The nodes are added to the world, and the engine
// decides (plan.go): each pod is nominated to the node of the plan, and taken there only if the
// scheduler's own filters agree. For what the engine still leaves pending, because numbers do not
// know everything, more nodes are bought in the same way, until none helps.
//
// The catalog (catalog.go) is read from the files that other tools use: Karpenter's NodePools with
// instance types as its kwok provider reads them (karpenter.go), and nodes with a price, or with
// the annotations of the cluster autoscaler's node groups (templates.go).
package provision
