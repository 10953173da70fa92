#!/usr/bin/env python3
# Copyright The Berth Authors
# SPDX-License-Identifier: Apache-2.0
"""Ask Berth's query service how many more pods like a workload fit.

    TOKEN=$(kubectl create token default) fits.py https://127.0.0.1:8423 shop deployment/web

It needs the standard library only. Set CA to the file of the server's CA;
without it, the server is not verified.
"""
import json
import os
import ssl
import sys
import urllib.error
import urllib.request


def ask(url, question, request):
    context = ssl.create_default_context(cafile=os.environ.get("CA"))
    if "CA" not in os.environ:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    call = urllib.request.Request(
        f"{url}/berth.v1alpha1.QueryService/{question}",
        data=json.dumps(request).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["TOKEN"]},
    )
    try:
        with urllib.request.urlopen(call, context=context, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.code}: {error.read().decode()}")


if __name__ == "__main__":
    url, namespace, like = sys.argv[1:]
    answer = ask(url, "Fits", {"namespace": namespace, "like": like, "max": True})
    print(f"{answer.get('placed', 0)} more fit. {answer.get('stops', '')}")
