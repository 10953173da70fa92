// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command query asks the query service whether the pods of a manifest fit into the cluster.
//
//	go run ./examples/query -token "$(kubectl create token default)" -manifest job.yaml
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/client"
)

func main() {
	url := flag.String("url", "https://127.0.0.1:8423", "address of berth serve")
	token := flag.String("token", "", "bearer token")
	ca := flag.String("ca", "", "file with the CA of the server; without it, the server is not verified")
	namespace := flag.String("namespace", "default", "namespace of the pods")
	manifest := flag.String("manifest", "", "file with pods or workloads")
	flag.Parse()
	if err := ask(*url, *token, *ca, *namespace, *manifest); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// ask prints the number of pods that fit, and their nodes.
func ask(url, token, ca, namespace, manifest string) error {
	o := client.Options{Token: token, Insecure: ca == ""}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return err
		}
		o.CA = text
	}
	text, err := os.ReadFile(manifest)
	if err != nil {
		return err
	}
	berth, err := client.New(url, o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, err := berth.Fits(ctx, &berthv1alpha1.FitsRequest{Namespace: namespace, Manifest: string(text)})
	if err != nil {
		return err
	}
	fmt.Printf("%d of %d pods fit. %s\n", answer.GetPlaced(), answer.GetWanted(), answer.GetStops())
	for node, pods := range answer.GetNodes() {
		fmt.Printf("%s: %d\n", node, pods)
	}
	return nil
}
