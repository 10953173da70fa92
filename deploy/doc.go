// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package deploy installs Berth in an existing cluster: a kustomization (kustomize/), a Helm chart
// that renders the same objects (chart/berth), and a separate module that packs the image and tests
// both (pack/).
//
// The package itself returns the rights of each part, read from the manifests: for `berth check`,
// which queries whether a cluster grants them, and for the test that compares them with the parts'
// actual requests (test/e2e_deploy).
package deploy
