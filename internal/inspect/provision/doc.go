// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package provision decides which nodes to buy. Given a cluster with pods that lack room and a
// catalog of nodes with prices, it finds cheap nodes for these pods. It reports their cost, the
// maximum distance from the least possible cost, and the pods that no node of the catalog can help.
//
// It works in three stages. Package packing packs the numeric form of pods and nodes (demand.go),
// using sizes, prices and exclusions between pods. The pods of an item are equivalent for the
// packing; afterwards each of them is assigned to a node that its spread constraints allow
// (assign.go, spreads.go). Finally the nodes are added to the world, and the engine
// decides (plan.go): each pod is nominated to its planned node, and placed there only if the
// scheduler's filters agree. Numbers do not capture everything, so more nodes are bought in the
// same way for the pods that the engine leaves pending, until no purchase helps.
//
// The catalog (catalog.go) is read from the files of other tools: Karpenter's NodePools with
// instance types as read by its kwok provider (karpenter.go), and nodes with a price, or with the
// annotations of the cluster autoscaler's node groups (templates.go).
package provision
