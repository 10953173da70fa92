// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package workload has the rules of pod-creating controllers: the pods they create, whether and
// when they replace pods, the pods removed on scaling down, and the completion of rollouts. They
// are pure rules over API objects, shared by forecasts, plans of moves and drains.
//
// The owner of a pod, and the relation between predecessor and successor, are in package rules,
// because the scheduler needs them as well.
package workload
