// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package words contains only tests. They pass the same random objects to Berth's own rules and to
// Kubernetes' code, and require the same results and messages. The package belongs to the nested
// module because Kubernetes' validation and admission are only available in k8s.io/kubernetes.
package words
