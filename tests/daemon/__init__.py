"""The pages and the daemon as `dflash ui` starts them, asked as the page asks them."""
