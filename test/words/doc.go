// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package words contains tests only. They pass the same random objects to Berth's own rules and to
// Kubernetes' code, and require the same results and messages. It belongs to the nested module
// because Kubernetes' validation and admission cannot be imported without k8s.io/kubernetes itself.
package words
