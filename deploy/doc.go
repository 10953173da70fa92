// Package deploy is what runs Berth in a cluster that exists: a kustomization (kustomize/), a Helm
// chart that renders the same objects (chart/berth), and a module of its own that packs the image
// and tests both (pack/).
//
// The package itself tells the rights of each part, read from the very manifests: for `berth
// check`, which asks a cluster whether it grants them, and for the test that compares them with
// what the parts really ask for (test/e2e_deploy).
package deploy
