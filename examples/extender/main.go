// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Command dataset-extender is an HTTP extender: see package datasets.
package main

import (
	"encoding/json"
	"flag"
	"log/slog"
	"net"
	"os"

	"github.com/berth-k8s/berth/examples/extender/datasets"
)

func main() {
	address := flag.String("listen", "127.0.0.1:8888", "where to listen")
	file := flag.String("inventory", "inventory.json", "which node has how much of which dataset")
	flag.Parse()
	if err := run(*address, *file); err != nil {
		slog.Error("The extender has ended", "err", err)
		os.Exit(1)
	}
}

func run(address, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var inventory datasets.Inventory
	if err := json.Unmarshal(data, &inventory); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	slog.Info("Listening", "address", address)
	return inventory.Serve(listener)
}
