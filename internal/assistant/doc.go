// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package assistant offers the questions of the query service as tools of the Model Context
// Protocol. The tools only read the cluster, and return the text printed by the command line.
package assistant
