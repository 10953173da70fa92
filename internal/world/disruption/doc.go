// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package disruption has the rules by which pods leave their nodes on request: the pods of a node
// evicted by kubectl drain, its messages of refusal for the rest, and the verdicts of the Eviction
// API. They are pure rules over API objects, shared by forecasts of a drain and the drain itself.
package disruption
