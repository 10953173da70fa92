// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2edeploy installs Berth's manifests on an embedded cluster and runs Berth's components
// there with the tokens of their ServiceAccounts. It compares the components' requests with the
// permissions in the manifests, tries to abuse the tokens, and runs the commands of pages in docs/
// as written.
package e2edeploy
