// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package words holds tests, and nothing else: they put the same random
// objects before Berth's own rules and before Kubernetes' code, and the two
// must answer alike, in the same words. It belongs to the nested module because Kubernetes'
// validation and admission cannot be imported without k8s.io/kubernetes itself.
package words
