#!/bin/sh
# Make what compose.yaml needs, in the folder where this is run: certificates, a key for each site,
# the proxy's configuration, the app, and where Flower's command line finds the SuperLink. It
# needs fedmaba, openssl and ssh-keygen, and nothing that exists is written again.
#     sh prepare.sh north south west
set -eu
umask 077
[ $# -gt 0 ] || { echo "name the sites: sh prepare.sh north south west" >&2; exit 2; }
[ ! -e keys ] || { echo "$PWD/keys exists: choose an empty folder" >&2; exit 2; }
mkdir -p keys home data homes

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes -days 365 \
  -subj "/CN=federation CA" -keyout keys/ca.key -out keys/ca.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes \
  -subj "/CN=superlink" -keyout keys/server.key -out keys/server.csr
echo "subjectAltName=DNS:superlink,DNS:localhost,IP:127.0.0.1" > keys/names.txt
openssl x509 -req -in keys/server.csr -CA keys/ca.pem -CAkey keys/ca.key -CAcreateserial \
  -days 365 -extfile keys/names.txt -out keys/server.pem

for site in "$@"; do
  ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f "keys/$site"
  mkdir -p "homes/$site"
done

fedmaba flower proxy proxy --keys keys --listen 0.0.0.0:8443 --superlink-port 8000
fedmaba flower new app
cat > home/config.toml <<END
[superlink]
default = "fair"

[superlink.fair]
address = "127.0.0.1:8000"
root-certificates = "$PWD/keys/ca.pem"
END
echo "done: now put each site's examples at data/SITE.npz, and move keys/ca.key off this host"
