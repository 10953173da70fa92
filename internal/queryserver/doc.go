// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package queryserver serves questions about a live cluster over gRPC and HTTP/JSON; the messages
// are defined in api/berth/v1alpha1. It only reads.
//
// A [follower] follows the watches of the cluster in several lanes. Each lane has a separate
// World, and processes short questions by trials in this World, which it undoes. Long questions,
// such as explanations and forecasts, run in forks of a lane's World, a few at a time. The work of
// each caller is limited, in judgements of a node for a pod.
package queryserver
