// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package disruption has the rules by which pods leave their nodes on request: the pods of a node
// that kubectl drain evicts, its refusals for the remaining pods, and the verdicts of the Eviction
// API. They are pure rules over API objects, shared by forecasts of a drain and the drain itself.
package disruption
