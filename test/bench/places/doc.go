// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package places measures how much work a cluster with GPUs accepts. It places the tasks of a
// trace, one after the other, and reports the share of the GPUs allocated at the end.
//
// The protocol is from "Beware of Fragmentation" (Weng et al., USENIX ATC 2023): the tasks of a mix
// arrive in random order, followed by tasks drawn from the mix, until their total demand is 130 %
// of the GPUs. Tasks never leave, and tasks that fit nowhere on arrival are not retried.
//
// The policies with the scores of Kubernetes and with Berth's plugin Fragmentation use Berth's
// engine and profiles as users write them. The policy "moves" is Fragmentation with at most three
// verified moves of tasks per 100 arrivals. The policy "claims" is Fragmentation with GPUs in
// ResourceSlices and a claim for each task; [Trace.PlayLive] does the same on a running cluster.
// FGD, the paper's policy, is a separate implementation.
package places
