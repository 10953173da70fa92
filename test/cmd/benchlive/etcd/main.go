// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Etcd runs a single etcd member with etcd's own defaults, for the API servers of benchlive and
// integration. It embeds the server because importing etcd's own command would add the modules of
// its gRPC proxy.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	config := embed.NewConfig()
	flag.StringVar(&config.Dir, "data-dir", "", "where the data is kept")
	flag.StringVar(&config.LogLevel, "log-level", "warn", "what is logged")
	flag.Int64Var(&config.QuotaBackendBytes, "quota-backend-bytes", 0, "how large the data may become")
	clients := flag.String("listen-client-urls", "", "where clients connect")
	advertised := flag.String("advertise-client-urls", "", "where clients are told to connect; empty: the same")
	peers := flag.String("listen-peer-urls", "", "where other members would")
	flag.Parse()
	if err := run(config, *clients, cmp.Or(*advertised, *clients), *peers); err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		os.Exit(1)
	}
}

func run(config *embed.Config, clients, advertised, peers string) error {
	client, err := url.Parse(clients)
	if err != nil {
		return err
	}

	told, err := url.Parse(advertised)
	if err != nil {
		return err
	}

	peer, err := url.Parse(peers)
	if err != nil {
		return err
	}

	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*told}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, os.Interrupt, syscall.SIGTERM)
	member, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}

	defer member.Close()
	select {
	case <-asked:
		return nil
	case err := <-member.Err():
		return err
	}
}
