// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package places measures how much work a cluster with GPUs accepts: it plays the tasks of a trace,
// one after the other, and reports the share of GPUs allocated at the end.
//
// The protocol is from "Beware of Fragmentation" (Weng et al., USENIX ATC 2023): the tasks of a mix
// arrive in random order, followed by tasks drawn from the mix, until their total demand is 130 %
// of the GPUs; they never leave; tasks that fit nowhere on arrival are not retried.
//
// Berth's engine plays Kubernetes' scores and Berth's plugin Fragmentation, with profiles as
// written by users; "moves" is Fragmentation with at most three proved moves per 100 arrivals,
// "claims" is Fragmentation with GPUs in ResourceSlices and a claim for each task. [Trace.PlayLive]
// plays these on a running cluster. A separate implementation plays FGD, the paper's policy.
package places
