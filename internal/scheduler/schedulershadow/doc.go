// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package schedulershadow compares the choices of another scheduler with Berth's.
//
// In parallel with an active scheduler, Berth follows the cluster and keeps a queue of the pending
// pods, but decides and writes nothing. When such a pod is bound, every node is evaluated in a
// state possible at the time of the decision, and the chosen node is compared with the best. Berth
// always takes one of the best, so the gain is the cluster's potential improvement, in points of
// the profile's scores.
//
// A scheduler with several concurrent bindings writes them in another order than its decisions. A
// difference counts only if it exists in every possible state at the time of the decision;
// undecidable cases are counted separately. The core determines the possible states.
package schedulershadow
